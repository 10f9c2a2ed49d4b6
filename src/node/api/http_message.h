// What a node answers where it does not answer.
#pragma once

#include <string_view>

#include "net/http/http_message.h"

namespace aquifer {

// {"error":{"code":"not_found","message":"..."}}. The message says what to do next.
HttpResponse HttpError(unsigned status, std::string_view code, std::string_view message);

}  // namespace aquifer
