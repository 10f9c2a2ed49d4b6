// A real S3 server in a process of its own, on a free port of the loopback, over a directory of its
// own: versitygw, or MinIO in a full run. It ends with this object, and with the test.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "store/s3/bucket.h"
#include "testing/child_process.h"
#include "testing/scratch_directory.h"

namespace aquifer {

enum class S3Program : uint8_t { kVersity, kMinio };

struct S3ServerOptions {
  S3Program program = S3Program::kVersity;
  std::string region = "us-east-1";
  // Both or none: then it speaks TLS.
  std::string certificate_file{};
  std::string key_file{};
  // The size of a file system for its objects alone; 0: they share one. Mounting it needs a right:
  // see limited().
  uint64_t data_bytes = 0;
  // Versity only: keeps objects' metadata in attributes of their files, and not in files beside
  // them. With files it loses some when several clients write one object at once. Not every
  // filesystem has attributes.
  bool in_attributes = false;
  std::vector<std::string> environment{};  // MinIO only: "NAME=value" each, besides its own.
};

class S3Server {
 public:
  // Empty if it is not installed; tools/install-peers installs it.
  static std::string ProgramPath(S3Program program);

  // Returns true if files here have attributes.
  static bool HasAttributes();

  explicit S3Server(const S3ServerOptions& options = {});
  ~S3Server();
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;

  uint16_t port() const { return port_; }
  bool limited() const { return mounted_; }
  std::string url() const;
  // Options for bucket kBucket, through this port if it is not 0.
  BucketOptions Options(uint16_t port = 0) const;
  // Options for another process, with the names that every server here has.
  static BucketOptions OptionsFor(const std::string& url);
  static constexpr const char* kBucket = "kv-cache";

  void Kill();
  void Start();  // Starts it again, on the same port and with its objects; returns when it answers.

  // Returns true if the server made the bucket.
  bool MakeBucket() const;
  // Removes the bucket with all objects, behind the server's back. Versity only.
  void DestroyBucket() const;
  // The path of an object's file. Versity only.
  std::string PathOf(const std::string& key) const;

 private:
  const S3ServerOptions options_;
  const ScratchDirectory directory_;
  const uint16_t port_;
  bool mounted_ = false;
  std::unique_ptr<ChildProcess> process_;
};

// Submits, waits, and returns the status.
Status DoS3(Bucket* bucket, S3Request* request);

}  // namespace aquifer
