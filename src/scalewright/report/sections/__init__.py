"""The sections of a report: a file each, `section(run) -> Section | None`; None when nothing is to show."""
