"""What texts of requests must look like, and how a refusal says so: nobody shall have to read a pattern."""

from __future__ import annotations

from chaos.git import REVISION

# What is shown within a line, and printed by terminals: no character that controls either.
ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
REVISION_NAME = f"^{REVISION.pattern}$"
COMMIT = "^[0-9a-f]{4,64}$"
CODE = "^[0-9a-f]{4,64}(-[0-9a-f]+)?$"
LINK = r"^https?://[^\s/]+(/\S*)?$"
IN_WORDS = {
    ONE_LINE: "is shown in one line: leave out control characters and separators of lines",
    REVISION_NAME: "names no revision: give a commit, a branch or a tag",
    COMMIT: "is no commit: give at least 4 of its digits (0 to 9, a to f)",
    CODE: "is no commit: give at least 4 of its digits (0 to 9, a to f)",
    LINK: "is no address: it begins with http:// or https:// and a host, and holds no blanks",
}
