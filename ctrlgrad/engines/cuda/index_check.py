"""How a kernel notes an index that is out of range: the host raises the error at the next place where it waits."""

# An index that is out of range is noted, the first in the stream's order; of several in one kernel, one of them is.
# Who sets the site, which is never zero, from zero notes the rest: what is noted is of one index.
CHECK = """\
if (index < -n || index >= n) {
    unsigned long long* word = reinterpret_cast<unsigned long long*>(&flag[0]);
    if (atomicCAS(word, 0ULL, (unsigned long long)site) == 0ULL) { flag[1] = index; flag[2] = n; }
}"""

__all__ = ["CHECK"]
