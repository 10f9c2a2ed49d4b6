// Bytes one after the other, from a file, from gzip on top of one, or from memory. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "aquifer/status.h"

namespace aquifer {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Fills `buffer` as far as there are bytes and returns how many; 0 is the end. Fewer than fit say
  // nothing.
  virtual Result<size_t> Read(std::span<char> buffer) = 0;

  // Of the file itself, compressed or not: what a progress bar shows.
  virtual uint64_t bytes_read() const = 0;
  // 0: not known, as of a pipe.
  virtual uint64_t bytes_total() const = 0;
};

// A file or a pipe, plain or gzip, told apart by its first bytes. kNotFound, kInvalid (a directory,
// or gzip where we were built without it) and kUnavailable come with a message for people.
Result<std::unique_ptr<ByteSource>> OpenBytes(const std::string& path);

// The caller keeps the bytes for as long as the source is there.
std::unique_ptr<ByteSource> BytesInMemory(std::span<const char> bytes);

// Unpacks `compressed`; several gzip members in a row are one stream. kInvalid: built without
// zlib.
Result<std::unique_ptr<ByteSource>> Gunzip(std::unique_ptr<ByteSource> compressed);

}  // namespace aquifer
