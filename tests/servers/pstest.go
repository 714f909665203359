// A Pub/Sub server of its own process: the fake that Google's Go client is tested with.
package main

import (
	"flag"
	"fmt"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	port := flag.Int("port", 0, "where to listen, on the loopback interface")
	flag.Parse()
	server := pstest.NewServerWithPort(*port)
	fmt.Println("Server started, listening on", server.Addr)
	select {}
}
