// Wrapped data keys in a bucket, beside the blobs under the same prefix: "<prefix>_keys/<name>". No
// blob has such a name.
//
// A bucket that keeps old versions of objects cannot forget a key. A server that ignores conditions
// lets two nodes make a tenant's key. Both are found out before the first change, and refused.
#pragma once

#include <memory>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "store/s3/bucket.h"
#include "tenant/keys/key_store.h"

namespace aquifer {

// Does not contact the server yet.
Result<std::unique_ptr<KeyStore>> OpenKeyBucket(const BucketOptions& options, Clock* clock,
                                                Random* random);

}  // namespace aquifer
