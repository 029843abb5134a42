"""Where events arrive durably: numbered segments in a directory."""

from opentab.log.directory import DirectoryLog, Producer
from opentab.log.segment import Segment, SegmentHeader, read_segment

__all__ = ["DirectoryLog", "Producer", "Segment", "SegmentHeader", "read_segment"]
