#include "node/config/key_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <utility>

#include "base/crypto/sha256.h"
#include "base/descriptor.h"
#include "base/mutex.h"
#include "base/text/hex.h"

namespace aquifer {
namespace {

constexpr std::string_view kFirstLine = "aquifer key store 1";

std::string FileOf(const std::string& state, const std::string& socket) {
  if (state.empty()) return "";
  const Sha256Digest digest = Sha256Of(std::as_bytes(std::span(socket)));
  return fmt::format("{}/key-store-{}", state, HexOf(std::span(digest).first(8)));
}

std::string TextOf(const KeyAddress& address, const std::string& socket) {
  std::string text = fmt::format("{}\nsocket {}\n", kFirstLine, socket);
  if (!address.directory.empty()) return text + fmt::format("directory {}\n", address.directory);
  text += fmt::format("bucket {}\nprefix {}\n", address.bucket, address.prefix);
  for (const std::string& endpoint : address.endpoints) {
    text += fmt::format("endpoint {}\n", endpoint);
  }
  return text;
}

// False: there is no such line.
bool ReadLine(const std::string& line, KeyAddress* address) {
  const size_t space = line.find(' ');
  if (space == std::string::npos) return false;
  const std::string word = line.substr(0, space);
  std::string value = line.substr(space + 1);
  if (word == "directory") {
    address->directory = std::move(value);
  } else if (word == "bucket") {
    address->bucket = std::move(value);
  } else if (word == "prefix") {
    address->prefix = std::move(value);
  } else if (word == "endpoint") {
    address->endpoints.push_back(std::move(value));
  } else {
    return word == "socket";
  }
  return true;
}

Status Failed(std::string_view what, const std::string& path) {
  return Status(Code::kUnavailable,
                fmt::format("cannot {} {}: {}", what, path, std::strerror(errno)));
}

Status WriteSynced(const std::string& path, std::string_view text) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) return Failed("write", path);
  // A few hundred bytes: what is written in part is not written.
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fsync(file.get()) != 0) {
    return Failed("write", path);
  }
  return Status();
}

class RememberedKeys final : public KeyStore {
 public:
  RememberedKeys(std::unique_ptr<KeyStore> store, KeyMemory memory, KeyAddress address,
                 std::function<void(const Status&)> on_failure)
      : store_(std::move(store)),
        memory_(std::move(memory)),
        address_(std::move(address)),
        on_failure_(std::move(on_failure)) {}

  Result<bool> Create(const std::string& name, std::span<const std::byte> value) override {
    if (!remembered()) {
      AQ_RETURN_IF_ERROR(store_->List().status());  // It is there.
      Remember();
    }
    return store_->Create(name, value);
  }

  Result<std::vector<std::byte>> Read(const std::string& name) override {
    Result<std::vector<std::byte>> found = store_->Read(name);
    if (found.ok()) Remember();
    return found;
  }

  Result<bool> Replace(const std::string& name, std::span<const std::byte> expected,
                       std::span<const std::byte> value) override {
    return store_->Replace(name, expected, value);
  }
  Status Delete(const std::string& name) override { return store_->Delete(name); }
  Result<std::vector<std::string>> List() override { return store_->List(); }

 private:
  bool remembered() AQ_EXCLUDES(mutex_) {
    const MutexLock lock(&mutex_);
    return remembered_;
  }

  void Remember() AQ_EXCLUDES(mutex_) {
    {
      const MutexLock lock(&mutex_);
      if (std::exchange(remembered_, true)) return;
    }
    if (const Status status = memory_.Remember(address_); !status.ok()) on_failure_(status);
  }

  const std::unique_ptr<KeyStore> store_;
  const KeyMemory memory_;
  const KeyAddress address_;
  const std::function<void(const Status&)> on_failure_;
  Mutex mutex_;
  bool remembered_ AQ_GUARDED_BY(mutex_) = false;
};

}  // namespace

bool KeyAddress::IsSame(const KeyAddress& other) const {
  if (!directory.empty() || !other.directory.empty()) return directory == other.directory;
  return bucket == other.bucket && prefix == other.prefix &&
         std::ranges::find_first_of(endpoints, other.endpoints) != endpoints.end();
}

std::string KeyAddress::Describe() const {
  if (!directory.empty()) return fmt::format("in {}", directory);
  return fmt::format("in bucket {}{} of {}", bucket,
                     prefix.empty() ? "" : fmt::format(" below {}", prefix),
                     fmt::join(endpoints, ", "));
}

KeyMemory::KeyMemory(const std::string& state, std::string socket)
    : socket_(std::move(socket)), file_(FileOf(state, socket_)) {}

Result<std::optional<KeyAddress>> KeyMemory::Recall() const {
  std::error_code error;
  if (file_.empty() || !std::filesystem::exists(file_, error)) return std::optional<KeyAddress>();
  std::ifstream file(file_);
  std::string line;
  KeyAddress address;
  bool good = static_cast<bool>(std::getline(file, line)) && line == kFirstLine;
  while (good && std::getline(file, line)) good = ReadLine(line, &address);
  if (good && address.directory.empty() == !address.endpoints.empty())
    return std::optional(address);
  return Status(Code::kInvalid,
                fmt::format("{} should say where this node's data keys are, and cannot be read; "
                            "see that key_store names that place, and remove the file",
                            file_));
}

Status KeyMemory::Remember(const KeyAddress& address) const {
  if (file_.empty()) return Status(Code::kUnavailable, "there is no state directory");
  const std::string beside = file_ + ".new";
  AQ_RETURN_IF_ERROR(WriteSynced(beside, TextOf(address, socket_)));
  if (std::rename(beside.c_str(), file_.c_str()) != 0) return Failed("replace", file_);
  const std::string folder = std::filesystem::path(file_).parent_path();
  const Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid() || ::fsync(directory.get()) != 0) return Failed("sync", folder);
  return Status();
}

std::unique_ptr<KeyStore> NewRememberedKeys(std::unique_ptr<KeyStore> store, KeyMemory memory,
                                            KeyAddress address,
                                            std::function<void(const Status&)> on_failure) {
  return std::make_unique<RememberedKeys>(std::move(store), std::move(memory), std::move(address),
                                          std::move(on_failure));
}

}  // namespace aquifer
