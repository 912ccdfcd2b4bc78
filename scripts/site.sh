#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds a site from README.md and docs/ in build/site. Needs python3 with venv, and PyPI the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=build/site_venv
if [[ ! -x $venv/bin/mkdocs ]]; then
  python3 -m venv "$venv" || { echo "site.sh: no virtual environment; on Debian: apt-get install python3-venv" >&2; exit 5; }
  "$venv/bin/pip" install --quiet 'mkdocs-material>=9.5,<10'
fi

# The README becomes the first page, next to the pages of docs/: its links must not say docs/.
rm -rf build/site_pages
mkdir -p build/site_pages
cp -r docs/. build/site_pages
sed 's|](docs/|](|g' README.md >build/site_pages/index.md

NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict
echo "build/site/index.html"
