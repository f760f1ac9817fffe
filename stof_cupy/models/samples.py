"""Texts for demonstrations, by William Shakespeare: sentences in six pairs, a passage, speeches."""

from __future__ import annotations

import re

__all__ = ["PASSAGE", "SENTENCES", "speeches"]

SENTENCES = (
    "All the world's a stage, and all the men and women merely players.",
    "The fool doth think he is wise, but the wise man knows himself to be a fool.",
    "Neither a borrower nor a lender be; for loan oft loses both itself and friend.",
    "If music be the food of love, play on.",
    "To die, to sleep; to sleep: perchance to dream.",
    "Now is the winter of our discontent made glorious summer by this sun of York.",
    "Better a witty fool than a foolish wit.",
    "He was wont to lend money for a Christian courtesy; let him look to his bond.",
    "Life's but a walking shadow, a poor player that struts and frets his hour upon the stage.",
    "We are such stuff as dreams are made on, and our little life is rounded with a sleep.",
    "How sour sweet music is, when time is broke and no proportion kept!",
    "Shall I compare thee to a summer's day? Thou art more lovely and more temperate.",
)

PASSAGE = """\
To be, or not to be: that is the question: Whether 'tis nobler in the mind to suffer The slings and
arrows of outrageous fortune, Or to take arms against a sea of troubles, And by opposing end them?
To die: to sleep; No more; and by a sleep to say we end The heart-ache and the thousand natural
shocks That flesh is heir to, 'tis a consummation Devoutly to be wish'd.
To die, to sleep; To sleep: perchance to dream: ay, there's the rub; For in that sleep of death what
dreams may come When we have shuffled off this mortal coil, Must give us pause: there's the respect
That makes calamity of so long life; For who would bear the whips and scorns of time, The
oppressor's wrong, the proud man's contumely, The pangs of despised love, the law's delay, The
insolence of office and the spurns That patient merit of the unworthy takes, When he himself might
his quietus make With a bare bodkin? who would fardels bear, To grunt and sweat under a weary life,
But that the dread of something after death, The undiscover'd country from whose bourn No traveller
returns, puzzles the will And makes us rather bear those ills we have Than fly to others that we
know not of? Thus conscience does make cowards of us all; And thus the native hue of resolution Is
sicklied o'er with the pale cast of thought, And enterprises of great pith and moment With this
regard their currents turn awry, And lose the name of action."""


def speeches(play: str) -> list[tuple[str, str]]:
    r"""Return who speaks and what he says, of a play as Markdown; stage directions are left out.

    Parameters
    ----------
    play : str
        A speaker is in bold type, a line of its own; a speech ends at an empty line. See
        `zoo.hamlet`.

    Examples
    --------
    >>> speeches("# Hamlet\n\n**BERNARDO**  \nWho's _within_\nthere?\n\n_Enter HAMLET_\n")
    [('BERNARDO', "Who's there?")]
    """
    found = re.findall(r"^\*\*([^*]+)\*\* *\n(.+?)(?=\n\n|\Z)", play, re.DOTALL | re.MULTILINE)
    said = [(who, " ".join(re.sub(r"_[^_]*_", "", text).split())) for who, text in found]
    return [(who, text) for who, text in said if text]
