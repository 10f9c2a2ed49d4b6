// A key directory on a file system that comes and goes, such as one that many nodes mount: it is
// opened when it is first needed, and again when another one stands in its place. While it is not
// there everything is kUnavailable, so that nobody takes an empty mount point for a store that has
// lost its keys.
#pragma once

#include <memory>
#include <string>

#include "tenant/keys/key_store.h"

namespace aquifer {

// `proof` is a file that is there whenever the right file system is.
std::unique_ptr<KeyStore> NewMountedKeys(std::string directory, std::string proof);

}  // namespace aquifer
