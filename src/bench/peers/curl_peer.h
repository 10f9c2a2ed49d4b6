// The curl program, many transfers at once: what a person would measure a server's speed with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "store/s3/bucket.h"

namespace aquifer {

class CurlPeer {
 public:
  // `directory` is for its files, and outlives it.
  CurlPeer(BucketOptions options, std::string directory)
      : options_(std::move(options)), directory_(std::move(directory)) {}

  // How long it takes, less what curl needs to start. Signs every request anew.
  Result<double> DownloadSeconds(const std::vector<std::string>& keys, size_t at_once) const;
  // Each key from the same file, whose SHA-256 is known beforehand.
  struct Source {
    std::string file;
    std::string sha256;
  };
  Result<double> UploadSeconds(const std::vector<std::string>& keys, const Source& source,
                               size_t at_once) const;

 private:
  Result<double> Seconds(const std::vector<std::string>& keys, const Source* source,
                         size_t at_once) const;
  std::string SectionFor(const std::string& key, const Source* source) const;

  const BucketOptions options_;
  const std::string directory_;
};

}  // namespace aquifer
