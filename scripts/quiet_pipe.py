"""Ends a script whose reader has gone (`| head`) without a word, as other programs end."""

import os
import sys

SIGPIPE_STATUS = 128 + 13


def run(main):
    """main()'s exit code; what it printed has reached the reader, or nobody reads on."""
    try:
        code = main()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SIGPIPE_STATUS
