"""Everything that shows: text, charts, progress, what notebooks display, and the report."""
