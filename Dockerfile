# The program in a small image: docker build -t quern . && docker run --rm -v "$PWD:/work" quern help
# For GPUs: --build-arg PRESET=release --build-arg BUILD=nvidia/cuda:13.0.0-devel-ubuntu24.04
#           --build-arg RUN=nvidia/cuda:13.0.0-runtime-ubuntu24.04
ARG BUILD=debian:12-slim
ARG RUN=debian:12-slim

FROM ${BUILD} AS build
ARG PRESET=cpu
WORKDIR /quern
COPY . .
RUN apt-get update && apt-get install -y --no-install-recommends dpkg-dev file \
    && scripts/build ${PRESET} --target quern \
    && cpack -G DEB --config build/${PRESET}/CPackConfig.cmake -B /package

FROM ${RUN}
COPY --from=build /package/*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/*.deb \
    && rm -rf /tmp/*.deb /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["quern"]
