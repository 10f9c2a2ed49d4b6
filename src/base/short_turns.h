// For threads that others wait for and that never work for long: the cache's owner, a disk's.
#pragma once

namespace aquifer {

// From now on the calling thread, once there is something for it to do, goes before threads that
// compute: beside checksums on two processors it waited for its turn for up to three milliseconds.
// It gets no larger share of the processors. Linux from 6.12 on; nothing changes on older ones.
void RunInShortTurns();

}  // namespace aquifer
