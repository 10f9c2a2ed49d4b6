// Walks through the blobs of a posix store in the order of their files' paths.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "aquifer/status.h"
#include "store/blob_store.h"
#include "store/posix/posix_paths.h"

namespace aquifer {

// As BlobStore::List() says. May block, and reads a page of every blob that it names.
Result<BlobStore::Names> ListBlobs(const PosixPaths& paths, std::string_view prefix,
                                   std::string_view after, size_t max);

}  // namespace aquifer
