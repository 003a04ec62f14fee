#!/usr/bin/env bash
# Installs what tests talk to and pip does not have: a MariaDB server and a browser. Exit code 1: one is still missing.
set -euo pipefail
missing=()
PATH="$PATH:/usr/sbin:/usr/local/sbin"
command -v mariadbd >/dev/null || missing+=(mariadb-server-core)
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Tests that need ${missing[*]} will be skipped: install these packages, or run this as root on Debian."
    exit 1
fi
echo "Installing ${missing[*]} for the tests."
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
