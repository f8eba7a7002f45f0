"""Print a code block of the README that is marked `<!-- ci: NAME -->` on the line before it."""

import re
import sys
from pathlib import Path


def marked_block(text: str, name: str) -> str:
    pattern = rf"<!-- ci: {re.escape(name)} -->\n```\w*\n(.*?)```"
    found = re.findall(pattern, text, flags=re.DOTALL)
    if len(found) != 1:
        raise SystemExit(f"README.md has {len(found)} blocks marked 'ci: {name}'; it must have one")
    return found[0]


if __name__ == "__main__":
    readme = Path(__file__).parent.parent / "README.md"
    sys.stdout.write(marked_block(readme.read_text(encoding="utf-8"), sys.argv[1]))
