"""Words of messages: numbers with their nouns, and printable names."""


def plural(count: int, noun: str) -> str:
    """Return the number with its noun: "1 shard", "1,234 shards", "2 classes", "3 batches"."""
    nouns = noun + ("es" if noun.endswith(("s", "tch")) else "s")
    return f"{count:,} {noun if count == 1 else nouns}"


def printable(line: str) -> str:
    """Escape line ends, terminal codes and bytes that are no text, as names of files have."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
