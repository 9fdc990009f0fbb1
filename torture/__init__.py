"""Whether harel keeps its promises under whatever happens: ``python -m torture``, or ``make torture``."""
