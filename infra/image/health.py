"""Exit code 0 if the process in this container answers; for HEALTHCHECK. The image has no curl.

Without an argument: `/health/live` of the API on its own port. A runner: `health.py http://127.0.0.1:9464/live`.
"""

import os
import ssl
import sys
from urllib.error import URLError
from urllib.request import urlopen

TIMEOUT_SECONDS = 4


def main() -> None:
    scheme = "https" if os.environ.get("VITRINE_TLS_CERT") else "http"
    own = f"{scheme}://127.0.0.1:{os.environ.get('VITRINE_API_PORT') or 8000}/health/live"
    # the connection does not leave the container, and the certificate is for another name
    context = ssl._create_unverified_context()
    try:
        with urlopen(sys.argv[1] if len(sys.argv) > 1 else own, timeout=TIMEOUT_SECONDS, context=context):
            pass
    except (URLError, OSError) as exc:
        sys.exit(f"no answer: {exc}")


main()
