"""One page about a run: facts are gathered here (data), then drawn and put into words (strings)."""
