"""Write the certificates that this machine trusts beyond Debian's own list: trusted.py DIRECTORY."""

import re
import sys
from pathlib import Path

CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n", re.DOTALL)


def certificates(path: Path) -> set[str]:
    return set(CERTIFICATE.findall(path.read_text(encoding="ascii", errors="replace")))


known = {one for path in Path("/usr/share/ca-certificates").rglob("*.crt") for one in certificates(path)}
more = certificates(Path("/etc/ssl/certs/ca-certificates.crt")) - known
for number, certificate in enumerate(sorted(more)):
    Path(sys.argv[1], f"machine-{number}.crt").write_text(certificate, encoding="ascii")
