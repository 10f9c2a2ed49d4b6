#include "store/blob_store.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace aquifer {

void Complete(BlobRequest* request, Status status) {
  request->status = std::move(status);
  const auto on_done = std::move(request->on_done);
  on_done(*request);
}

void BlobStore::ListAny(std::vector<std::string> prefixes, std::string_view after, size_t max,
                        std::function<void(Result<Names>)> on_done) {
  AQ_CHECK(prefixes.size() == 1);
  List(prefixes.front(), after, max, std::move(on_done));
}

Status CheckBlobName(std::string_view name) {
  constexpr size_t kMostCharacters = 512;
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyz0123456789-./";
  const auto plain = [](char c) { return c != '-' && c != '.' && c != '/'; };
  const bool good =
      !name.empty() && name.size() <= kMostCharacters &&
      name.find_first_not_of(kAllowed) == std::string_view::npos && plain(name.front()) &&
      plain(name.back()) && name.find("..") == std::string_view::npos &&
      name.find("//") == std::string_view::npos && name.find("./") == std::string_view::npos;
  return good ? Status{} : Status(Code::kInvalid, fmt::format("'{}' cannot name a blob", name));
}

}  // namespace aquifer
