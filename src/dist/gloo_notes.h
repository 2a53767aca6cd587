// Short notes between the ranks of a Gloo context, beside their collectives. Only for sources that
// are compiled with Gloo.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace quern {

// question: asks for the pending collective. answer: that collective; empty: none. The last two
// tell why the sender closes all connections. late: silent ranks. failure: its own error.
enum class NoteKind : uint8_t { question, answer, late, failure };

class GlooNotes {
 public:
  using Receive = std::function<void(int from, NoteKind kind, const std::string& text)>;

  // Threads call `receive` for each note, and `lost` once when a connection has closed without a
  // farewell.
  GlooNotes(std::shared_ptr<gloo::Context> context, Receive receive, std::function<void()> lost);
  ~GlooNotes();  // ends the threads
  GlooNotes(const GlooNotes&) = delete;
  GlooNotes& operator=(const GlooNotes&) = delete;

  // Cuts the text at kMostText. A note that cannot be sent is dropped. From any thread.
  void send(int to, NoteKind kind, const std::string& text = {});
  // Waits until the notes to rank `to` have been sent. A wait beyond the limit closes all
  // connections.
  void flush(int to, std::chrono::milliseconds limit);

  // This rank leaves, and its connections may close. Waits as flush().
  void say_farewell(std::chrono::milliseconds limit);

  static constexpr size_t kMostText = 254;

 private:
  struct Note {
    NoteKind kind = NoteKind::question;
    uint8_t size = 0;
    std::array<char, kMostText> text{};
  };
  struct Sent {
    Note note;
    int to = 0;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  };

  void receive_notes();
  void watch();

  std::shared_ptr<gloo::Context> context_;
  Receive receive_;
  std::function<void()> lost_;
  std::vector<int> others_;
  Note received_;                // one at a time, from any rank
  std::vector<char> farewells_;  // a byte for each rank, awaited from all at once
  std::unique_ptr<gloo::transport::UnboundBuffer> in_, farewells_in_;
  std::mutex mutex_;
  std::list<Sent> sent_;
  std::thread receiver_, watcher_;
};

}  // namespace quern
