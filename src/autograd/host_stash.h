// Activations in the host's memory between a forward and its backward. A separate stream copies
// them there while the forward continues; in the backward they come back one group ahead of their
// use. The newest group also stays on the device: reuse of its memory would wait for its
// copy, and the backward begins with it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tensor/cuda_runtime.h"
#include "tensor/tensor.h"

namespace quern {

class HostStash : public std::enable_shared_from_this<HostStash> {
 public:
  class Group;

  static std::shared_ptr<HostStash> make() { return std::shared_ptr<HostStash>(new HostStash); }
  ~HostStash();
  HostStash(const HostStash&) = delete;
  HostStash& operator=(const HostStash&) = delete;

  // Begins to copy contiguous tensors, which the caller must not change. Their memory is free once
  // the caller drops them and the next group is put. The group has them until it is destroyed.
  std::shared_ptr<Group> put(const std::vector<Tensor>& tensors);

  // The tensors on the device, once: the group keeps none. Begins to bring back the group that was
  // put before this one.
  std::vector<Tensor> take(Group& group);

  int64_t bytes() const;  // of host memory, which is kept for the next forward

 private:
  HostStash() = default;
  void bring(Group& group);
  void leave(Group& group);
  Tensor place_for(size_t index, size_t part, int64_t bytes);
  void fork();

  cuda::OwnedStream side_;  // of the copies, on GPUs
  cuda::Event forked_;
  std::vector<Group*> groups_;  // put and not destroyed, by index; null: destroyed
  // Host memory of a group's tensors. A captured graph copies to it, so a place is never freed, nor
  // replaced by one of another size.
  std::map<std::pair<size_t, size_t>, std::vector<Tensor>> places_;
};

class HostStash::Group {
 public:
  explicit Group(std::shared_ptr<HostStash> stash) : stash_(std::move(stash)) {}
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

 private:
  friend class HostStash;
  struct Part {
    Shape shape;
    DType dtype = DType::f32;
    Tensor host;       // u8
    Tensor on_device;  // undefined while the group is only on the host
  };

  std::shared_ptr<HostStash> stash_;
  size_t index_ = 0;
  std::vector<Part> parts_;
  cuda::Event arrival_;
  bool is_on_device_ = true, is_taken_ = false;  // on the device, or on its way there
};

// Keeps tensors for a backward: the function returns them. With a stash they wait in the host's
// memory, and the function can be called once.
std::function<std::vector<Tensor>()> keep(std::vector<Tensor> tensors,
                                          const std::shared_ptr<HostStash>& stash);

}  // namespace quern
