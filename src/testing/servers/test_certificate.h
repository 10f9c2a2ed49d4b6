// A self-signed certificate for 127.0.0.1 and localhost, with its key, as two PEM files: for tests
// with TLS. Valid for a day.
#pragma once

#include <string>

namespace aquifer {

void WriteTestCertificate(const std::string& certificate_file, const std::string& key_file);

}  // namespace aquifer
