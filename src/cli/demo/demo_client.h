// Asks a replica of the reference engine over HTTP, streamed, and measures when the first word
// comes.
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "aquifer/status.h"

namespace aquifer {

struct DemoReply {
  std::string text;
  double first_token_ms = 0;  // From sending the request.
  nlohmann::json usage;
};

// `body` is that of /v1/chat/completions, without what concerns streaming. kLate: nothing came for
// a minute, or `*interrupted` became true.
Result<DemoReply> AskReplica(uint16_t port, nlohmann::json body,
                             const std::atomic<bool>* interrupted);

}  // namespace aquifer
