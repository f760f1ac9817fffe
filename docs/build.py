"""Write the API pages from the docstrings, the README first: ``python docs/build.py DIRECTORY``."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from pathlib import Path

import pdoc.doc
import pdoc.render

ROOT = Path(__file__).resolve().parents[1]


def public_modules() -> list[pdoc.doc.Module]:
    """Import all modules that have no leading underscore."""
    found = pkgutil.walk_packages([str(ROOT / "stof_cupy")], "stof_cupy.")
    names = ["stof_cupy", *(module.name for module in found if "._" not in module.name)]
    modules = [importlib.import_module(name) for name in names]
    for module in modules:
        for name in getattr(module, "__all__", ()):
            # pdoc looks into the module's dict, where names that resolve lazily are not yet.
            setattr(module, name, getattr(module, name))
    return [pdoc.doc.Module(module) for module in modules]


def main(out: Path) -> None:
    """Write one page per module below `out`, an index and the search data."""
    modules = {module.modulename: module for module in public_modules()}
    # Aliases written as strings, as "Shape | None" in the graph: pdoc shows them as they stand.
    warnings.filterwarnings("ignore", message="Error parsing type annotation")
    package = modules["stof_cupy"]
    package.docstring = (ROOT / "README.md").read_text()
    pdoc.render.configure(docformat="numpy", footer_text=f"stof_cupy {package.obj.__version__}")
    pages = {
        name.replace(".", "/") + ".html": pdoc.render.html_module(module, modules)
        for name, module in modules.items()
    }
    pages["index.html"] = pdoc.render.html_index(modules)
    pages["search.js"] = pdoc.render.search_index(modules)
    for name, text in pages.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")
    print(f"{len(modules)} pages, from {out / 'index.html'} on")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
