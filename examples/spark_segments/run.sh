#!/bin/bash
# Build segments by a Spark job in local mode, merge its parts, and compare with one build of the same rows.
#
#   bash run.sh             needs Java 17 or newer; everything else goes into build/spark, in a venv of its own
#   USERS=270000000         how many users (2,000,000 unless said);  PARTITIONS=8
#   PYTHON=/path/to/python  makes the venv (3.11 or newer)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
here=$PWD
root=$(cd ../.. && pwd)
work=$root/build/spark
venv=$work/venv
users=${USERS:-2000000} partitions=${PARTITIONS:-8}

command -v java >/dev/null || { echo "spark_segments: Java is missing; install it (Debian: apt-get install openjdk-17-jre-headless)" >&2; exit 1; }
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PIP_DISABLE_PIP_VERSION_CHECK=1

# Made anew when what it is made from changes; the mark is written last.
mark=$(cat requirements.txt "$root/pyproject.toml" | sha256sum)
if [[ $(cat "$venv/.made-from" 2>/dev/null) != "$mark" ]]; then
  echo "spark_segments: making a venv with Spark (a few hundred megabytes, once)" >&2
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet -r requirements.txt "$root[segments]"
  echo "$mark" >"$venv/.made-from"
fi
# The package itself from the source tree: what is being proven.
export PYTHONPATH=$root/src
capline() { "$venv/bin/python" -m capline.cli "$@"; }

rm -rf "$work/rows" "$work/parts" "$work/merged" "$work/whole"
export PYSPARK_PYTHON=$venv/bin/python PYSPARK_DRIVER_PYTHON=$venv/bin/python SPARK_LOCAL_IP=127.0.0.1
"$venv/bin/spark-submit" --master "local[2]" --driver-memory 2g --conf spark.ui.enabled=false \
  "$here/job.py" "$work/rows" "$work/parts" --partitions "$partitions" --generate "$users" 2>"$work/spark.log" ||
  { tail -30 "$work/spark.log" >&2; exit 1; }

capline segments merge "$work"/parts/* --out "$work/merged"
capline segments build "$work/rows/*.parquet" --out "$work/whole" >/dev/null

# Files are named by their content: the same names are the same sets.
same() { (cd "$1" && ls | grep -v manifest.json); }
[[ $(same "$work/merged") == "$(same "$work/whole")" ]] || { echo "spark_segments: the merged parts differ from one build" >&2; exit 1; }
echo "the merged parts are what one build of all rows gives"
