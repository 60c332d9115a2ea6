#!/usr/bin/env bash
# Creates infra/local/ once: random passwords for the containers, and a certificate of the API for this machine.
# No other user may enter the folder. The key is readable inside it, because the account of the container must read it.
set -euo pipefail
cd "$(dirname "$0")"
umask 077
if ! command -v openssl >/dev/null; then
  echo "make up needs the command openssl, to create passwords and a certificate: install the package openssl" >&2
  exit 1
fi
mkdir -p local
chmod 700 local
if [ ! -e local/tls.crt ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 825 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost,IP:127.0.0.1,DNS:etl-api \
    -keyout local/tls.key -out local/tls.crt.new 2>/dev/null
  chmod 644 local/tls.key local/tls.crt.new
  mv local/tls.crt.new local/tls.crt
fi
if [ ! -e local/env ]; then
  for name in ETL_DB_PASSWORD ETL_API_PASSWORD ETL_RUNNER_PASSWORD ETL_READER_PASSWORD ELASTIC_PASSWORD; do
    echo "$name=$(openssl rand -hex 24)"
  done >local/env.new
  mv local/env.new local/env
fi
