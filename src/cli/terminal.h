// The terminal, taken over for a screen that is drawn again and again: its own page, no cursor,
// keys as they are typed. It is put back when this ends, also by a signal: those that end a program
// are waited for with the keys.
#pragma once

#include <signal.h>
#include <termios.h>

#include <string>

#include "base/descriptor.h"
#include "cli/top_screen.h"

namespace aquifer {

class Terminal {
 public:
  // Both ends are one.
  static bool Is();

  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  ScreenSize size() const;
  void Draw(const std::string& text);
  // False: q, Ctrl-C or a signal said that it is enough.
  bool WaitOrEnd(int milliseconds);

 private:
  termios before_{};
  sigset_t signals_before_{};
  Descriptor signals_;
};

}  // namespace aquifer
