#!/usr/bin/env bash
# The source archive and the wheel made from it, in dist/; the wheel installed into an environment of its own and used.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:?usage: tools/check_wheel.sh PYTHON}
here=$PWD
unset PYTHONPATH VIRTUAL_ENV

rm -rf dist
.venv/bin/python -m hatchling build --target sdist > /dev/null
.venv/bin/python -m pip --disable-pip-version-check -q wheel --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
ls -l dist

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
cd "$folder"
venv/bin/python -m pip --disable-pip-version-check -qq install --only-binary :all: -c "$here/constraints.txt" "$here"/dist/*.whl
venv/bin/tablepuppet --version
venv/bin/python "$here/tools/small_training.py"
venv/bin/tablepuppet demo --flights 5000 --json > demo.json
echo "wheel: installed and used outside the repository"
