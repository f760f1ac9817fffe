"""The operators: one module each, reading as validate, describe, choose, build, launch."""
