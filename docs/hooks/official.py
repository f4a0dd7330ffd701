"""The benchmarks' official data as Markdown, from ``comap.envs.datasets``."""

from __future__ import annotations

from comap.envs.datasets import DataSet, catalogue

__all__ = ["data_steps", "data_table"]


def data_table() -> str:
    """Return a table of all data sets: what each is, its license, where it is from, and how to get it."""
    heads = ("data set", "what", "license, as published", "size", "checked by", "without it")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for data_set in catalogue().values():
        source, _, remark = data_set.license_source.partition(" ")
        license_cell = f"[{data_set.license}]({source}){remark and ' ' + remark}"
        cells = (
            f"[`{data_set.name}`]({data_set.homepage})",
            data_set.title,
            license_cell,
            data_set.size,
            _checks(data_set),
            data_set.fallback,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _checks(data_set: DataSet) -> str:
    """Return what `comap data verify` compares a data set with."""
    if data_set.package:
        return "the package's version" if data_set.version else "whether the package is there"
    if data_set.builds:
        return "the SHA-256 of what was built"
    if data_set.present:
        return "whether files are there"
    if data_set.splits:
        return "number and SHA-256 of the games of a split"
    if all(file.sha256 for file in data_set.files):
        return "SHA-256 of each file"
    return "number of records; no checksum was published"


def data_steps() -> str:
    """Return how to get each data set: one command, or its steps."""
    downloads = [
        data_set.remedy for data_set in catalogue().values() if data_set.url or data_set.files
    ]
    parts = ["One command downloads and compares:", _block(downloads)]
    for data_set in catalogue().values():
        if data_set.steps:
            parts += [f"`{data_set.name}`:", _block(data_set.steps)]
    return "\n\n".join(parts)


def _block(lines: list[str] | tuple[str, ...]) -> str:
    return "\n".join(["```sh", *lines, "```"])
