"""Which kind of file system a path lies on: SQLite's write-ahead log is unsafe where memory is not shared.

WAL keeps its index in shared memory, so all processes must be on one host (sqlite.org/wal.html, "Disadvantages" 2);
on a network file system two hosts would each see an index of their own and corrupt the file.
"""

from __future__ import annotations

import os
from pathlib import Path

NETWORK_FILESYSTEMS = frozenset(
    [
        *("9p", "afs", "ceph", "cifs", "coda", "glusterfs", "nfs", "nfs4", "smb3", "smbfs", "virtiofs", "vmhgfs"),
        *("beegfs", "fhgfs", "gfs2", "gpfs", "lustre", "ocfs2", "orangefs", "panfs", "pvfs2", "wekafs"),
        *("fuse.blobfuse2", "fuse.cephfs", "fuse.davfs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys"),
        *("fuse.juicefs", "fuse.mount-s3", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "fuse.vmhgfs-fuse", "fuse.wekafs"),
    ]
)


def filesystem_of(path: Path, mountinfo: str) -> str | None:
    """The file system type of the mount that holds `path`, e.g. "ext4" or "nfs4".

    Args:
        path: absolute path; it need not exist.
        mountinfo: text of /proc/self/mountinfo, by proc(5) lines such as "36 35 98:0 /root /mount/point rw,noatime
            shared:1 - ext3 /dev/root rw". Spaces, tabs, newlines and backslashes in a mount point are octal escapes.

    Returns:
        None when no line holds the path. Of two mounts at one point, the later line: it covers the earlier one.
    """
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if not separator or len(fields) < 5 or not kinds[0]:
            continue
        point = Path(_unescape(fields[4]))
        if path == point or point in path.parents:
            depth = len(point.parts)
            if best is None or depth >= best[0]:
                best = (depth, kinds[0])
    return None if best is None else best[1]


def is_network(path: Path, mountinfo: str | None = None) -> bool:
    """Whether `path` lies where other hosts may write too; False where the mounts cannot be read."""
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return False
    return filesystem_of(Path(os.path.realpath(path)), mountinfo) in NETWORK_FILESYSTEMS


def _unescape(field: str) -> str:
    for code in ("\\040", "\\011", "\\012", "\\134"):
        field = field.replace(code, chr(int(code[1:], 8)))
    return field
