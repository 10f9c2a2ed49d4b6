#include <zlib.h>

#include <array>
#include <utility>

#include "base/check.h"
#include "trace/byte_source.h"

namespace aquifer {
namespace {

constexpr int kGzipWindowBits = 15 + 16;  // The largest window; gzip's header and nothing else.

class GzipBytes final : public ByteSource {
 public:
  explicit GzipBytes(std::unique_ptr<ByteSource> compressed) : compressed_(std::move(compressed)) {}
  ~GzipBytes() override {
    if (open_) inflateEnd(&stream_);
  }

  Status Open() {
    open_ = inflateInit2(&stream_, kGzipWindowBits) == Z_OK;
    return open_ ? Status() : Status(Code::kNoSpace, "no memory to unpack gzip");
  }

  Result<size_t> Read(std::span<char> buffer) override {
    stream_.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream_.avail_out = static_cast<uInt>(buffer.size());
    while (stream_.avail_out == buffer.size()) {
      if (stream_.avail_in == 0) {
        AQ_ASSIGN_OR_RETURN(const size_t count, compressed_->Read(input_));
        if (count == 0) return AtEnd();
        stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
        stream_.avail_in = static_cast<uInt>(count);
      }
      if (member_ended_) {
        // Zeros behind the last member are how tapes pad.
        if (*stream_.next_in == 0) {
          ++stream_.next_in;
          --stream_.avail_in;
          continue;
        }
        AQ_CHECK(inflateReset(&stream_) == Z_OK);
        member_ended_ = false;
      }
      const int result = inflate(&stream_, Z_NO_FLUSH);
      member_ended_ = result == Z_STREAM_END;
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
        return Status(Code::kCorrupt,
                      "the gzip data is damaged. Next step: try it with gzip --test");
      }
    }
    return buffer.size() - stream_.avail_out;
  }

  uint64_t bytes_read() const override { return compressed_->bytes_read(); }
  uint64_t bytes_total() const override { return compressed_->bytes_total(); }

 private:
  Result<size_t> AtEnd() const {
    if (member_ended_) return size_t{0};
    return Status(Code::kCorrupt,
                  "the gzip data ends too early. Next step: copy the file again, or try it with "
                  "gzip --test");
  }

  const std::unique_ptr<ByteSource> compressed_;
  z_stream stream_{};
  bool open_ = false;
  bool member_ended_ = false;
  std::array<char, 1 << 16> input_;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> Gunzip(std::unique_ptr<ByteSource> compressed) {
  auto bytes = std::make_unique<GzipBytes>(std::move(compressed));
  AQ_RETURN_IF_ERROR(bytes->Open());
  return std::unique_ptr<ByteSource>(std::move(bytes));
}

}  // namespace aquifer
