// A BlobStore in a bucket of any S3 server: one object for each blob, under the bucket's prefix and
// the blob's name. Objects are written with a condition, so that of two nodes one writes. A server
// that does not know conditions is asked first, and Describe() says so.
//
// on_done runs on the bucket's thread.
#pragma once

#include <memory>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "store/blob_store.h"
#include "store/s3/bucket.h"

namespace aquifer {

// Fails if options are wrong (kInvalid), or in a build without libcurl (kUnavailable). A server
// that cannot be reached shows in the requests.
Result<std::unique_ptr<BlobStore>> NewObjectStore(const BucketOptions& options, Clock* clock,
                                                  Random* random);

}  // namespace aquifer
