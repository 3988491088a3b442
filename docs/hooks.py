"""What the site does with links that leave docs/, such as ../README.md, which are meant for readers of the repository.

With `repo_url` in mkdocs.yml they lead there; without, only their text stays.
"""

import re
from posixpath import dirname, join, normpath
from typing import Any

_LEAVING = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""

    def replaced(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = normpath(join("docs", dirname(page.file.src_uri), target))
        if path.startswith("docs/"):
            return link[0]
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path})" if config.repo_url else text

    return _LEAVING.sub(replaced, markdown)
