// A key directory on a file system that comes and goes, such as one that many nodes mount. It is
// opened when it is first needed, and again when another file system stands in its place. While the
// file system is not mounted, every call returns kUnavailable: nobody takes an empty mount point
// for a store that has lost its keys.
#pragma once

#include <memory>
#include <string>

#include "tenant/keys/key_store.h"

namespace aquifer {

// `proof` is a file that exists exactly while the right file system is mounted.
std::unique_ptr<KeyStore> NewMountedKeys(std::string directory, std::string proof);

}  // namespace aquifer
