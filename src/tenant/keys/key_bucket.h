// Wrapped data keys in a bucket, beside the blobs under the same prefix: "<prefix>_keys/<name>",
// which no blob is called.
//
// A bucket that keeps old versions of objects cannot forget a key, and a server that ignores
// conditions lets two nodes make a tenant's key: both are found out before the first change, and
// refused.
#pragma once

#include <memory>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "store/s3/bucket.h"
#include "tenant/keys/key_store.h"

namespace aquifer {

// Reaches for nothing yet.
Result<std::unique_ptr<KeyStore>> OpenKeyBucket(const BucketOptions& options, Clock* clock,
                                                Random* random);

}  // namespace aquifer
