#include "store/posix/posix_listing.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "store/posix/posix_blob.h"

namespace aquifer {
namespace {

// The parts of a blob's path.
std::vector<std::string> PartsOf(std::string_view name) {
  std::vector<std::string> parts;
  if (name.empty()) return parts;
  const std::string path = EncodeBlobName(name);
  for (size_t at = 0; at <= path.size();) {
    const size_t slash = std::min(path.find('/', at), path.size());
    parts.push_back(path.substr(at, slash - at));
    at = slash + 1;
  }
  return parts;
}

// What every blob's name below a folder begins with: "a/b/", or less where a part was cut.
std::string BeginningOf(std::string_view folder) {
  if (folder.empty()) return {};
  const std::string inside = DecodeBlobName(std::string(folder) + "/x_blob");
  return inside.substr(0, inside.size() - 1);
}

class Walk {
 public:
  Walk(const PosixPaths& paths, std::string_view prefix, std::string_view after, size_t max)
      : paths_(paths), prefix_(prefix), after_(PartsOf(after)), max_(max) {}

  // `follow`: this folder is on the way to `after`, whose part at `depth` is the first that counts.
  Status Into(const std::string& folder, size_t depth, bool follow) {
    const Result<std::vector<std::string>> entries =
        ListFolder(folder.empty() ? paths_.Blobs() : PathIn(paths_.Blobs(), folder));
    if (!entries.ok()) {
      return entries.status().code() == Code::kNotFound ? Status() : entries.status();
    }
    for (const std::string& entry : *entries) {
      if (names_.size() >= max_) return Status();
      const bool here = follow && depth < after_.size();
      if (here && entry < after_[depth]) continue;
      const bool on_the_way = here && entry == after_[depth];
      const std::string path = folder.empty() ? entry : PathIn(folder, entry);
      if (IsBlobFile(entry)) {
        if (!on_the_way) Add(path);
      } else if (MayHoldPrefix(path)) {
        AQ_RETURN_IF_ERROR(Into(path, depth + 1, on_the_way));
      }
    }
    return Status();
  }

  BlobStore::Names Take() { return std::move(names_); }

 private:
  bool MayHoldPrefix(const std::string& folder) const {
    const std::string beginning = BeginningOf(folder);
    return beginning.starts_with(prefix_) || std::string_view(prefix_).starts_with(beginning);
  }

  void Add(const std::string& path) {
    std::string name = DecodeBlobName(path);
    if (name.empty() || !name.starts_with(prefix_)) return;
    const Result<PosixBlob> blob = OpenBlob(PathIn(paths_.Blobs(), path), /*direct=*/false);
    if (!blob.ok()) return;  // Gone meanwhile.
    const Result<BlobLabel> label = ReadBlobLabel(*blob, name);
    // One that is not whole is named too, so that somebody removes it.
    names_.push_back({std::move(name), label.ok() ? label->blob_bytes : 0});
  }

  const PosixPaths& paths_;
  const std::string prefix_;
  const std::vector<std::string> after_;
  const size_t max_;
  BlobStore::Names names_;
};

}  // namespace

Result<BlobStore::Names> ListBlobs(const PosixPaths& paths, std::string_view prefix,
                                   std::string_view after, size_t max) {
  Walk walk(paths, prefix, after, max);
  AQ_RETURN_IF_ERROR(walk.Into("", 0, true));
  return walk.Take();
}

}  // namespace aquifer
