#include "store/blob_counters.h"

namespace aquifer {

void BlobCounters::Count(const BlobRequest& request, const Status& status) {
  if (status.code() == Code::kNotFound) {
    ++misses_;
  } else if (status.code() == Code::kLate) {
    ++late_;
  } else if (!status.ok()) {
    ++failures_;
  } else if (request.kind == BlobKind::kRead) {
    ++reads_;
    read_bytes_ += request.blob_bytes;
  } else if (request.kind == BlobKind::kLook) {
    ++looks_;
  } else if (request.kind == BlobKind::kRemove) {
    ++removes_;
  } else if (request.existed) {
    ++existed_;
  } else {
    ++writes_;
    written_bytes_ += request.head.size() + request.body_bytes;
  }
}

std::vector<std::pair<std::string, uint64_t>> BlobCounters::ByName() const {
  return {{"reads", reads_},      {"read_bytes", read_bytes_}, {"looks", looks_},
          {"writes", writes_},    {"existed", existed_},       {"written_bytes", written_bytes_},
          {"removes", removes_},  {"misses", misses_},         {"late", late_},
          {"failures", failures_}};
}

}  // namespace aquifer
