"""Numbers with their nouns, for messages."""


def counted(count: int, noun: str) -> str:
    """As in "1 shard", "1,234 shards", "2 classes"."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{count:,} {noun if count == 1 else plural}"
