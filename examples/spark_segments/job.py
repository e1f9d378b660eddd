"""Build segments on a Spark cluster: every partition writes one partial snapshot; `capline segments merge` unites them.

    python job.py rows/ parts/ [--partitions 8] [--generate 2000000]

The rule that makes it safe: a partition's directory is named by its number and written by one rename, so a task that is
retried, or run twice, writes the same directory again. Nothing is collected on the driver but counts: the ids of a
partition stay in the task that reads them, as bitmaps.

`--generate` first writes rows to read, with ids from 0 up: the newest 5 % are `new`, of the others one in four is
`active`, one in ten is in no segment, and the rest are `churned`. Some ids come twice, in two partitions, as they do.
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capline.segment import Snapshot, build_segments, write_snapshot
from capline.segment.build.source import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# By name: only the venv of this example has it, and what checks types here has not.
functions: Any = import_module("pyspark.sql.functions")


def main() -> None:
    """Generate rows if asked, then build every partition."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=Path, help="a directory of Parquet: id, segment")
    parser.add_argument("parts", type=Path, help="where the partial snapshots go: a disk that all tasks share")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--generate", type=int, default=0, metavar="USERS")
    arguments = parser.parse_args()

    spark: Any = import_module("pyspark.sql").SparkSession.builder.appName("capline segments").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if arguments.generate:
        generate(spark, arguments.generate, arguments.partitions, str(arguments.rows))
    directory = str(arguments.parts.absolute())
    frame = spark.read.parquet(str(arguments.rows)).select("id", "segment").repartition(arguments.partitions)
    done: list[int] = frame.rdd.mapPartitions(partial(build, directory)).collect()
    print(f"{len(done)} parts, {sum(done):,} ids in them")
    spark.stop()


def generate(spark: Any, users: int, partitions: int, path: str) -> None:
    """Write rows; a tenth of the ids twice."""
    chance = functions.pmod(functions.xxhash64("id"), functions.lit(100))
    segment = (
        functions.when(functions.col("id") >= users - users // 20, "new")
        .when(chance < 25, "active")  # noqa: PLR2004 - shares of a hundred, told above
        .when(chance < 90, "churned")  # noqa: PLR2004 - as above
    )
    frame = spark.range(0, users, 1, partitions).withColumn("segment", segment).dropna()
    twice = frame.union(frame.where(functions.pmod("id", functions.lit(10)) == 0))
    twice.write.mode("overwrite").parquet(path)


def build(directory: str, rows: Iterable[Any]) -> list[int]:
    """Build one partition's rows and write them as a partial snapshot; the number of ids in it, if it has any."""
    number: int = import_module("pyspark").TaskContext.get().partitionId()
    sets = build_segments(batches(rows), partial=True)
    if not sets:
        return []
    snapshot = Snapshot.verified(sets, None, None)
    write_snapshot(snapshot, f"{directory}/{number:05}", replace=True, partial=True)
    return [sum(map(len, sets.values()))]


def batches(rows: Iterable[Any], size: int = 100_000) -> Iterator[Rows]:
    """Columns out of Spark's rows, a batch at a time; an id that is none stops the task, with its row."""
    ids: list[int] = []
    codes: list[int] = []
    names: dict[str, int] = {}
    for row in rows:
        if row.id is None or row.segment is None or not 0 <= row.id < 1 << 32:
            raise ValueError(f"{row}: an id is 0 to 4294967295, and every row has a segment")
        ids.append(row.id)
        codes.append(names.setdefault(row.segment, len(names)))
        if len(ids) == size:
            yield Rows(np.array(ids, np.uint32), np.array(codes, np.int32), tuple(names))
            ids.clear()
            codes.clear()
    if ids:
        yield Rows(np.array(ids, np.uint32), np.array(codes, np.int32), tuple(names))


if __name__ == "__main__":
    main()
