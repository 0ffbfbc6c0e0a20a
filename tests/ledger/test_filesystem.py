from pathlib import Path

import pytest

from steptime.ledger.filesystem import filesystem_of, is_network

# The first line is the example of proc(5); the others are lines of real clusters with the names changed.
MOUNTS = """\
36 35 98:0 /mnt1 / rw,noatime master:1 - ext3 /dev/root rw,errors=continue
40 36 0:45 / /home rw,relatime shared:22 - nfs4 filer:/export/home rw,vers=4.2,proto=tcp
41 36 0:46 / /scratch rw - lustre mds01@o2ib:/scratch rw,flock
42 40 8:17 / /home/anna/local rw,relatime - xfs /dev/sdb1 rw
43 36 0:50 / /mnt/my\\040share rw,nosuid - cifs //nas/quant rw,vers=3.1.1
44 36 0:51 / /data rw - ext4 /dev/sdc1 rw
45 36 0:52 / /data rw master:3 shared:4 propagate_from:1 - fuse.sshfs anna@host:/data rw
46 36 0:53 / /homework rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/var/lib/ledger.db", "ext3", False),
        ("/home/bob/ledger.db", "nfs4", True),
        ("/home", "nfs4", True),
        ("/home/anna/local/ledger.db", "xfs", False),  # the deepest mount counts, not the first
        ("/homework/ledger.db", "tmpfs", False),  # a common prefix of names is not a parent
        ("/scratch/x", "lustre", True),
        ("/mnt/my share/x", "cifs", True),  # octal escapes
        ("/data/x", "fuse.sshfs", True),  # mounted over the ext4 one: the later line covers it; optional fields vary
    ],
)
def test_the_deepest_mount_that_holds_the_path_decides(path, kind, network):
    assert filesystem_of(Path(path), MOUNTS) == kind
    assert is_network(Path(path), MOUNTS) is network


@pytest.mark.parametrize("text", ["", "not a mount line\n", "1 2 3\n", "36 35 98:0 /m / rw -\n"])
def test_unreadable_mounts_are_taken_for_local(text):
    assert filesystem_of(Path("/home/x"), text) is None
    assert not is_network(Path("/home/x"), text)


def test_a_symbolic_link_is_followed(tmp_path):
    (tmp_path / "link").symlink_to("/home/bob")
    assert is_network(tmp_path / "link" / "ledger.db", MOUNTS)


def test_this_machine_names_a_file_system():
    assert filesystem_of(Path("/proc/self"), Path("/proc/self/mountinfo").read_text()) == "proc"
