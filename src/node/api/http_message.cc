#include "node/api/http_message.h"

#include <nlohmann/json.hpp>

namespace aquifer {

HttpResponse HttpError(unsigned status, std::string_view code, std::string_view message) {
  HttpResponse response;
  response.status = status;
  const nlohmann::json error = {{"error", {{"code", code}, {"message", message}}}};
  response.body = error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return response;
}

}  // namespace aquifer
