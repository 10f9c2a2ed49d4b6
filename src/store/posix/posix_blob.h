// One blob's file: opened, read, looked at and written, straight from and into a request's memory
// where that is aligned and the file system can. Any thread; everything here may block.
#pragma once

#include <cstdint>
#include <string>

#include "aquifer/status.h"
#include "base/descriptor.h"
#include "store/blob_store.h"
#include "store/posix/posix_label.h"

namespace aquifer {

struct PosixBlob {
  Descriptor file;
  uint64_t file_bytes = 0;
  uint64_t device = 0;  // With `inode`: which file it is.
  uint64_t inode = 0;
};

// For reading, with a lock that keeps it from being reclaimed for as long as it is open. kNotFound:
// there is none, or it is being removed.
Result<PosixBlob> OpenBlob(const std::string& path, bool direct);

// Whether the request's memory can go to a device.
bool IsAligned(const BlobRequest& request);

// kCorrupt when the file is not what `name` and its label say.
Result<BlobLabel> ReadBlobLabel(const PosixBlob& blob, const std::string& name);

// As kRead and kLook say; the label comes back too.
Result<BlobLabel> ReadBlob(const PosixBlob& blob, BlobRequest* request);
Result<BlobLabel> LookAtBlob(const PosixBlob& blob, BlobRequest* request);

// The whole file, which is new: label, head, body and zeros to the end of the last page.
Status WriteBlob(int file, const BlobLabel& label, const BlobRequest& request);

}  // namespace aquifer
