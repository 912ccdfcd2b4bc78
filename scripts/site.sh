#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes a site of README.md and docs/ in build/site. Needs python3 with venv, and PyPI for the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=build/site_venv
if [[ ! -x $venv/bin/mkdocs ]]; then
  python3 -m venv "$venv" || { echo "site.sh: no virtual environment; on Debian: apt-get install python3-venv" >&2; exit 5; }
  "$venv/bin/pip" install --quiet 'mkdocs-material>=9.5,<10'
fi

# The README is the first page; its links to docs/ are links to its neighbours there.
rm -rf build/site_pages
mkdir -p build/site_pages
cp -r docs/. build/site_pages
sed 's|](docs/|](|g' README.md >build/site_pages/index.md

NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict
echo "build/site/index.html"
